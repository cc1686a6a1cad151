"""Validation: measures versions of the policy on their own prompts while training goes on."""
