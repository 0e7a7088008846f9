"""Files of users: read and inspected without torch, so that an upload is answered soon."""
