"""What bytes become before they leave the device."""
