"""What the trainers override of TRL and transformers still has the signature it was written against.

A private method may change in any release, and an override that is no longer called fails silently.
"""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.prm import PRMTrainer
from rewardlab.training.reward_model import BradleyTerryTrainer
from rewardlab.training.sft import ResumableSFTTrainer

ROOT = Path(__file__).parents[2]
TRAINERS = (PolicyTrainer, ResumableSFTTrainer, PRMTrainer, BradleyTerryTrainer)  # StrictResumeMixin is a part of three

SIGNATURES = {  # class of TRL or transformers and method -> its parameters in TRL 1.16
    "GRPOTrainer._calculate_rewards": "self inputs prompts completions completion_ids_list",
    "GRPOTrainer._compute_loss": "self model inputs",
    "GRPOTrainer._generate": "self prompts",
    "GRPOTrainer._generate_and_score_completions": "self inputs",
    "GRPOTrainer._generate_single_turn": "self prompt_ids images multimodal_fields num_generations has_tool_images",
    "GRPOTrainer._get_per_token_logps_and_entropies": (
        "self model input_ids attention_mask logits_to_keep batch_size compute_entropy compute_aux_loss pixel_values "
        "image_grid_thw num_images pixel_attention_mask spatial_shapes num_tiles image_sizes token_type_ids mm_token_type_ids "
        "image_position_ids"
    ),
    "GRPOTrainer._get_train_sampler": "self dataset",
    "GRPOTrainer._load_optimizer_and_scheduler": "self checkpoint",
    "GRPOTrainer._prepare_inputs": "self generation_batch",
    "GRPOTrainer._save_checkpoint": "self model trial",
    "GRPOTrainer._tokenize_prompts": "self prompts",
    "GRPOTrainer.log": "self logs start_time",
    "SFTTrainer.log": "self logs start_time",
    "SFTTrainer.training_step": "self args kwargs",
    "Trainer._clip_grad_norm": "self model",
    "Trainer._load_from_checkpoint": "self resume_from_checkpoint model",
    "Trainer._run_epoch": (
        "self model epoch train_dataloader steps_in_epoch num_update_steps_per_epoch trial ignore_keys_for_eval start_time "
        "resume_from_checkpoint epochs_trained steps_trained_in_current_epoch"
    ),
    "Trainer._save": "self output_dir state_dict",
    "Trainer.compute_loss": "self model inputs return_outputs num_items_in_batch",
    "Trainer.create_model_card": (
        "self language license tags model_name finetuned_from tasks dataset_tags dataset dataset_args"
    ),
    "Trainer.create_optimizer": "self model",
    "Trainer.get_batch_samples": "self epoch_iterator num_batches device",
    "Trainer.log": "self logs start_time",
    "Trainer.training_step": "self model inputs num_items_in_batch",
    "_BaseTrainer.create_model_card": "self model_name dataset_name tags",
}


def overrides(trainer: type) -> dict[str, str]:
    """Return the foreign methods that ``trainer`` and its bases of this package override, with their parameters."""
    ours = [cls for cls in trainer.__mro__ if cls.__module__.startswith("rewardlab.")]
    foreign = [cls for cls in trainer.__mro__ if not cls.__module__.startswith("rewardlab.") and cls is not object]
    signatures = {}
    for name in {name for cls in ours for name in vars(cls) if not name.startswith("__")}:
        owner = next((cls for cls in foreign if name in vars(cls)), None)
        if owner is not None:
            signatures[f"{owner.__name__}.{name}"] = " ".join(inspect.signature(vars(owner)[name]).parameters)
    return signatures


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_override_has_the_signature_it_was_written_against(trainer: type) -> None:
    """An override without an entry fails, too: read the method it replaces, and add it."""
    assert overrides(trainer) == {name: SIGNATURES.get(name) for name in overrides(trainer)}


def test_no_entry_is_left_over() -> None:
    assert set(SIGNATURES) == {name for trainer in TRAINERS for name in overrides(trainer)}


def test_trl_is_within_the_bounds_of_the_project() -> None:
    """Both ends of them: a release that nobody has tried is not installed by accident."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (trl,) = [need for need in map(Requirement, project["optional-dependencies"]["train"]) if need.name == "trl"]
    assert version("trl") in trl.specifier
    assert {clause.operator for clause in trl.specifier} >= {">=", "<"}
