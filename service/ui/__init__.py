"""The dashboard: pages that hold no data. All that they show and do goes through the API."""
