"""How judges state a verdict, how it is read, and what votes come to."""
