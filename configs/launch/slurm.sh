#!/usr/bin/env bash
# Four nodes of eight cards under Slurm: sbatch configs/launch/slurm.sh
# The run folder must be on a file system that all nodes see. Killed or pre-empted, the same command goes on from the last
# checkpoint, on as many nodes as it is then given.
#SBATCH --job-name=rewardlab
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
set -euo pipefail
CONFIG=${CONFIG:-configs/rl/stable_reinforce_multi_node.yaml}
DATA=${DATA:-runs/distill/distilled.parquet}
OUT=${OUT:-runs/rl}
HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
HEAD=${HOSTS%%$'\n'*}  # not by head, which closes the pipe: pipefail would end the job
# One task a node; accelerate starts a process for each of its cards.
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c "accelerate launch --config_file configs/accelerate/zero3.yaml \\
  --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES * 8)) --machine_rank \$SLURM_NODEID \\
  --main_process_ip $HEAD --main_process_port 29500 \\
  -m rewardlab.cli rl --config $CONFIG --data $DATA --out $OUT"
