"""The scenario suite: what the controller is held against, on traffic and seeds that nothing was tuned on."""
