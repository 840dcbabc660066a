"""Code-generation targets, and detection of the devices that run their code."""
