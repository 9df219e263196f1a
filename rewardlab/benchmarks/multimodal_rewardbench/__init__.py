"""multimodal_rewardbench"""
