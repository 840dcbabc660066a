"""The low-level IR: tensor expressions, and the loop nests to which schedules lower them."""
