"""Adapters that run inside other trainers and send groups and images to a judge behind ``rewardlab serve``."""
