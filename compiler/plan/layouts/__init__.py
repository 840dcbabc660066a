"""Layout assignment: which layouts values may have, what each costs, and the least sum of costs."""
