"""Uploaded images on their way to the model: fetched from the broker, decoded, handed to turns."""
