"""Code-generation targets and the devices that run their code: descriptions, facts and
detection."""
