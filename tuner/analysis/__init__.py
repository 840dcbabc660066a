"""Count the work of a loop nest and estimate its time; both rank candidates."""
