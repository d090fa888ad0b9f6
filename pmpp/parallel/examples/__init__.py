"""Programs for several ranks that stand on their own."""
