#!/usr/bin/env bash
# StableReinforce of a 7B judge with verl 0.9.1, on any number of nodes.
#
#   rewardlab data verl runs/hard --out train.parquet        (and a held-out set: val.parquet; on storage all nodes see)
#   ray start --head --port 6379                             (on the first node)
#   ray start --address HEAD:6379                            (on every other node)
#   NUM_NODES=4 MODEL=runs/sft/final configs/verl/stable_reinforce_7b.sh      (on the first node)
#
# Every node needs verl==0.9.1 with vLLM, and rewardlab in the same environment: `pip install --no-deps .` (verl pins another
# transformers; what runs inside verl needs torch, pydantic, pyyaml, httpx, openai and pillow of it). CONSISTENCY_URL is an
# OpenAI-compatible endpoint that every node reaches; without it the reward has no consistency. More arguments are more overrides.
set -euo pipefail

MODEL=${MODEL:-runs/sft/final}             # the judge after SFT; its template is the one the data were written with
TRAIN=${TRAIN:-train.parquet}
VAL=${VAL:-val.parquet}
NUM_NODES=${NUM_NODES:-1}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}          # nodes times GPUs divides 64: 128 rollouts per step, in micro-batches of 2
OUT=${OUT:-runs/verl}
CONSISTENCY_URL=${CONSISTENCY_URL:-}
CONSISTENCY_MODEL=${CONSISTENCY_MODEL:-Qwen/Qwen2.5-VL-7B-Instruct}
SWAP_WEIGHT=${SWAP_WEIGHT:-0}              # above 0: data written with --both-orders --shuffle SEED

args=(
  # The method, from rewardlab, loaded in the task runner, which whitens over the whole batch, and in every actor.
  actor_rollout_ref.model.external_lib=rewardlab.integrations.verl_stable_reinforce
  algorithm.adv_estimator=stable_reinforce
  actor_rollout_ref.actor.policy_loss.loss_mode=stable_reinforce
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean   # every rollout weighs the same, whatever its length
  actor_rollout_ref.actor.clip_ratio=0.2                      # PPO's, on both sides
  actor_rollout_ref.actor.clip_ratio_low=0.2
  actor_rollout_ref.actor.clip_ratio_high=0.2
  algorithm.gamma=1.0                                         # no discount within a judgment
  algorithm.use_kl_in_reward=False                            # the paper has no KL term, so no reference model is loaded
  actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.entropy_coeff=0

  # The paper's sizes (section 5): 256 rollouts of one sample a prompt, two steps of 128, one pass over each, five epochs.
  data.train_batch_size=256
  actor_rollout_ref.rollout.n=1
  actor_rollout_ref.actor.ppo_mini_batch_size=128             # prompts; times n they are rollouts
  actor_rollout_ref.actor.ppo_epochs=1
  trainer.total_epochs=5
  actor_rollout_ref.actor.optim.lr=1e-6

  # As `rewardlab rl` has it, where the paper does not say.
  actor_rollout_ref.actor.optim.lr_scheduler_type=cosine
  "actor_rollout_ref.actor.optim.betas=[0.9,0.95]"
  actor_rollout_ref.actor.optim.weight_decay=0.0
  actor_rollout_ref.actor.grad_clip=1.0
  data.seed=0

  # Sampling: the policy itself, nothing cut off from its distribution; validation is greedy.
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.top_p=1.0
  actor_rollout_ref.rollout.top_k=-1
  data.max_response_length=1024
  actor_rollout_ref.rollout.val_kwargs.temperature=0
  actor_rollout_ref.rollout.tensor_model_parallel_size=1      # 7B fits into one GPU: every GPU samples for itself
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6        # the rest holds the shards of the actor

  # Data of `rewardlab data verl`: two answers and their images. Longer prompts are left out, and verl prints how many.
  data.train_files="$TRAIN"
  data.val_files="$VAL"
  data.image_key=images
  data.max_prompt_length=8192
  data.filter_overlong_prompts=True
  data.truncation=error

  # Memory: micro-batches of two long prompts, recomputed activations.
  actor_rollout_ref.model.path="$MODEL"
  actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4

  # The reward of `rewardlab rl`: 0.5 format + right (1 + 0.5 consistency).
  reward.reward_manager.source=importlib
  reward.reward_manager.name=JudgeReward
  reward.reward_manager.module.path=pkg://rewardlab.integrations.verl_judge_reward
  +reward.reward_kwargs.format_weight=0.5

  trainer.nnodes="$NUM_NODES"
  trainer.n_gpus_per_node="$GPUS_PER_NODE"
  trainer.project_name=rewardlab
  trainer.experiment_name=stable_reinforce_7b
  trainer.default_local_dir="$OUT"
  "trainer.logger=[console]"
  trainer.save_freq=25                                        # rollout batches
  trainer.test_freq=25
)
if [ -n "$CONSISTENCY_URL" ]; then  # Ray's processes do not inherit this shell's environment
  args+=(
    +ray_kwargs.ray_init.runtime_env.env_vars.REWARDLAB_CONSISTENCY_URL="$CONSISTENCY_URL"
    +ray_kwargs.ray_init.runtime_env.env_vars.REWARDLAB_CONSISTENCY_MODEL="$CONSISTENCY_MODEL"
    +reward.reward_kwargs.consistency_weight=0.5
  )
fi
if [ "$SWAP_WEIGHT" != 0 ]; then  # one worker sees both orders of a pair, which stand next to each other
  args+=(+reward.reward_kwargs.swap_weight="$SWAP_WEIGHT" reward.num_workers=1 data.shuffle=False)
fi

exec "${PYTHON:-python3}" -m verl.trainer.main_ppo "${args[@]}" "$@"
