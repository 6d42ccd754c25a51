//! What waits in memory for the history's disk is counted.

use super::fixture::Fixture;

#[test]
fn what_waits_for_the_history_is_counted_until_it_is_there() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    let mut most = 0;
    for name in 0..50 {
        fixture.write("d", name..name + 1, &format!("{{\"a\":\"{}\"}}", "x".repeat(100_000)));
        most = most.max(fixture.store().waiting_bytes());
    }
    // The thread gathers changes for some milliseconds before it takes them.
    assert!(most >= 100_000, "{most}");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while fixture.store().waiting_bytes() > 0 {
        assert!(std::time::Instant::now() < end, "{} bytes wait", fixture.store().waiting_bytes());
        std::thread::yield_now();
    }
}
