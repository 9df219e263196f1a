"""own_pairs"""
