"""HTML pages, tables, plots and progress bars."""
