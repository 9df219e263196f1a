"""The rules by which public scorers turn one judge's recorded answers on VL-RewardBench into their figures."""
