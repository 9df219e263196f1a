"""rewardbench2"""
