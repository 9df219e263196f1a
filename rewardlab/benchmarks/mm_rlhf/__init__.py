"""mm_rlhf"""
