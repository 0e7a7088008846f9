"""Users, their keys and sign-ins, what they may do, and the audit log."""
