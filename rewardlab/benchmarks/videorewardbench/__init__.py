"""videorewardbench"""
