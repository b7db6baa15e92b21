"""Phase 1 on a real fleet over HTTP: who the engines are, what is said to them, how an arm is driven, what is kept."""
