"""Users, their keys and sign-ins, permissions, and the audit log."""
