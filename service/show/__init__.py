"""Tables, messages, units and charts for the terminal, the notebook and the dashboard."""
