"""The embedded demonstration: drawn scenes, questions with known answers, a teacher, and a base model that learns to see."""
