"""Programs of several ranks. `programs` has planted bugs, each with the nearest program that is right."""
