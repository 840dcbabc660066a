"""The low-level IR: tensor expressions, and the loop nests that schedules lower them to."""
