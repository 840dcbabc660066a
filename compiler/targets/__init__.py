"""What code is generated for, and the machines that run it: descriptions, facts and detection."""
