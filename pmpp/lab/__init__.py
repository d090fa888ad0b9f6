"""The instruments: devices, rooms, timing, rooflines, plots, exercises. No instrument imports a room."""
