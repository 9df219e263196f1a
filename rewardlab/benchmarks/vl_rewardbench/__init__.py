"""vl_rewardbench"""
