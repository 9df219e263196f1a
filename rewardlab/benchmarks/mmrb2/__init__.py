"""mmrb2"""
