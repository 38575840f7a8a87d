"""What a person sees of a run: `RunState`, text and displays of the ranks become output of the cell."""
