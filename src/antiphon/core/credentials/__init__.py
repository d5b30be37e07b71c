"""What a credential says: its scopes, and the agent that acts for a person."""
