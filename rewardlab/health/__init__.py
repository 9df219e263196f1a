"""Before money is spent, and while it is: will a run fit and work, and how does it go."""
