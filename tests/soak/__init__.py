"""A long soak in simulated time: days of calls in minutes, judged call by call."""
