"""`trimtab doctor`: do these engines have what the router needs? Facts are gathered by a shell (`gather`, `probe`),
judged by a pure core (`checks`), and told one line a finding (`findings`)."""
