use super::*;

const MS: Duration = Duration::from_millis(1);
const RETRY_AFTER: Duration = Duration::from_secs(1);

fn limiter() -> (TouchLimiter<u32>, Instant) {
    let now = Instant::now();
    (TouchLimiter::new(Rng::with_seed(1), now), now)
}

/// Sends all touches that can be sent until `end`, answering each `took` after it was sent. Returns the touches with
/// their times.
fn run(
    limiter: &mut TouchLimiter<u32>,
    mut now: Instant,
    end: Instant,
    took: Duration,
) -> Vec<(Duration, u32)> {
    let (start, mut sent, mut under_way) = (now, Vec::new(), VecDeque::new());
    loop {
        while let Some(&answer) = under_way.front()
            && answer <= now
        {
            under_way.pop_front();
            limiter.answered(now, took, None);
        }
        let next = limiter.next(now);
        let wake = match next {
            Ok((touch, _)) => {
                sent.push((now - start, touch));
                under_way.push_back(now + took);
                continue;
            }
            Err(at) => at,
        };
        let answer = under_way.front().copied();
        let Some(wake) = wake.into_iter().chain(answer).min() else {
            return sent;
        };
        assert!(wake > now, "it asks to be called at once");
        if wake > end {
            return sent;
        }
        now = wake;
    }
}

#[test]
fn touches_of_a_node_are_sent_in_one_burst_eight_at_a_time() {
    // beside-kubelet 24
    let (mut limiter, now) = limiter();
    for pod in 0..105 {
        limiter.enqueue(pod, 0, false);
    }
    for _ in 0..IN_FLIGHT {
        assert!(limiter.next(now).is_ok());
    }
    assert_eq!(limiter.next(now), Err(None));
    for _ in 0..IN_FLIGHT {
        limiter.answered(now, MS, None);
    }
    let sent = run(&mut limiter, now, now + Duration::from_secs(10), 40 * MS);
    assert_eq!(sent.len(), 105 - IN_FLIGHT);
    assert!(sent.last().unwrap().0 <= 500 * MS, "{sent:?}");
}

#[test]
fn after_the_burst_fifty_are_sent_each_second() {
    let (mut limiter, now) = limiter();
    for pod in 0..1000 {
        limiter.enqueue(pod, 0, false);
    }
    let sent = run(&mut limiter, now, now + Duration::from_secs(4), MS);
    // 110 at once, and 50 in each of the four seconds.
    assert_eq!(sent.len(), 110 + 200);
}

#[test]
fn higher_priority_goes_first_and_equals_in_random_order() {
    // beside-kubelet 24
    let order = |seed| {
        let now = Instant::now();
        let mut limiter = TouchLimiter::new(Rng::with_seed(seed), now);
        for pod in 0..30_u32 {
            let priority = i32::try_from(pod % 3).unwrap() - 1;
            limiter.enqueue(pod, priority, false);
        }
        let sent = run(&mut limiter, now, now + Duration::from_secs(1), MS);
        sent.into_iter().map(|(_, pod)| pod).collect::<Vec<_>>()
    };
    let first = order(1);
    let priorities: Vec<_> = first.iter().map(|pod| pod % 3).collect();
    assert!(priorities.is_sorted_by(|a, b| a >= b), "{priorities:?}");
    assert_eq!(first, order(1));
    assert_ne!(first, order(2));
}

#[test]
fn touch_that_waits_can_be_taken_back() {
    let (mut limiter, now) = limiter();
    let first = limiter.enqueue(1, 0, false);
    limiter.enqueue(2, 0, false);
    limiter.remove(first);
    assert_eq!(limiter.next(now), Ok((2, false)));
    assert_eq!(limiter.next(now), Err(None));
    let other = limiter.enqueue(3, 0, false);
    limiter.enqueue(4, 9, false);
    assert_eq!(limiter.next(now), Ok((4, false)));
    limiter.remove(other);
    assert_eq!(limiter.next(now), Err(None));
    assert!(limiter.waiting.is_empty());
}

#[test]
fn retry_after_silences_the_node_and_halves_the_rate() {
    // beside-kubelet 23
    let (mut limiter, now) = limiter();
    for pod in 0..100 {
        limiter.enqueue(pod, 0, false);
    }
    assert!(limiter.next(now).is_ok());
    limiter.answered(now, MS, Some(Duration::from_secs(2)));
    assert_eq!(limiter.rate(), 25);
    let sent = run(&mut limiter, now, now + Duration::from_secs(3), MS);
    assert!(sent.iter().all(|(at, _)| *at >= Duration::from_secs(2)));
    // Three seconds' worth of tokens, of which the bucket holds at most two.
    assert!((50..=76).contains(&sent.len()), "{}", sent.len());
    // Without a time, a second.
    limiter.answered(now, MS, Some(RETRY_AFTER));
    assert!(limiter.silent_until >= now + Duration::from_secs(1));
}

#[test]
fn slow_answers_halve_the_rate_down_to_two() {
    let (mut limiter, now) = limiter();
    let answer = |limiter: &mut TouchLimiter<u32>, slow: usize| {
        for number in 0..WINDOW {
            let took = if number < slow { 501 * MS } else { 499 * MS };
            limiter.answered(now, took, None);
        }
    };
    answer(&mut limiter, 2);
    assert_eq!(
        limiter.rate(),
        50,
        "two of twenty are beyond the percentile"
    );
    answer(&mut limiter, 0);
    answer(&mut limiter, 3);
    assert_eq!(limiter.rate(), 25);
    for expected in [12, 6, 3, 2, 2] {
        answer(&mut limiter, WINDOW);
        assert_eq!(limiter.rate(), expected);
    }
    for pod in 0..100 {
        limiter.enqueue(pod, 0, false);
    }
    let sent = run(&mut limiter, now, now + Duration::from_secs(10), MS);
    assert_eq!(sent.len(), 20);
}

#[test]
fn each_quiet_minute_doubles_the_rate() {
    let (mut limiter, now) = limiter();
    for _ in 0..6 {
        limiter.answered(now, MS, Some(RETRY_AFTER));
    }
    assert_eq!(limiter.rate(), MIN_RATE);
    for (minute, expected) in [2, 4, 8, 16, 32, 50, 50].into_iter().enumerate() {
        let now = now + QUIET * u32::try_from(minute).unwrap();
        let _ = limiter.next(now);
        assert_eq!(limiter.rate(), expected);
    }
    // Trouble restarts the minute.
    let late = now + QUIET * 10;
    limiter.answered(late, MS, Some(RETRY_AFTER));
    let _ = limiter.next(late + QUIET - MS);
    assert_eq!(limiter.rate(), 25);
    limiter.answered(late + QUIET - MS, MS, Some(RETRY_AFTER));
    let _ = limiter.next(late + QUIET);
    assert_eq!(limiter.rate(), 12);
}

#[test]
fn touches_of_a_start_are_sent_at_ten_a_second_after_all_others() {
    // beside-kubelet R27
    let (mut limiter, now) = limiter();
    let places: Vec<_> = (0..100).map(|pod| limiter.enqueue(pod, 9, true)).collect();
    let sent = run(&mut limiter, now, now + Duration::from_secs(3), MS);
    assert_eq!(sent.len(), 1 + 30);
    let now = now + Duration::from_secs(3);
    limiter.enqueue(1000, 0, false);
    assert_eq!(limiter.next(now), Ok((1000, false)));
    // A change makes one of them a touch like any other.
    let Some((_, &pod)) = limiter.waiting.last_key_value() else {
        panic!("some still wait");
    };
    let waiting = limiter.waiting.len();
    limiter.remove(places[usize::try_from(pod).unwrap()]);
    limiter.enqueue(pod, 0, false);
    assert_eq!(limiter.next(now), Ok((pod, false)));
    assert_eq!(limiter.waiting.len(), waiting - 1);
}

#[test]
fn large_clusters_spread_their_touches() {
    // beside-kubelet 25
    let mut random = Rng::with_seed(1);
    for (ttl, longest) in [
        (0, 0),
        (15, 1),
        (30, 2),
        (60, 5),
        (300, 20),
        (1_000_000, 20),
    ] {
        let longest = Duration::from_secs(longest);
        assert_eq!(longest_spread(Some(Duration::from_secs(ttl))), longest);
        let waits: Vec<_> = (0..100).map(|_| spread(longest, &mut random)).collect();
        assert!(waits.iter().all(|wait| *wait <= longest));
        let most = waits.iter().max().unwrap();
        assert!(*most >= longest.mul_f64(0.9), "{most:?}");
    }
    assert_eq!(longest_spread(None), Duration::ZERO);
}

#[test]
fn touch_that_was_not_sent_does_not_count() {
    let (mut limiter, now) = limiter();
    for pod in 0..500 {
        limiter.enqueue(pod, 0, false);
        assert_eq!(limiter.next(now), Ok((pod, false)));
        limiter.not_sent(false);
    }
    assert!(limiter.answers.is_empty());
    for pod in 0..1000 {
        limiter.enqueue(pod, 0, false);
    }
    let sent = run(&mut limiter, now, now + Duration::from_secs(1), MS);
    assert_eq!(sent.len(), 110 + 50);
}

#[test]
fn catch_up_touch_that_was_not_sent_does_not_count() {
    let (mut limiter, now) = limiter();
    for pod in 0..500 {
        limiter.enqueue(pod, 0, true);
        assert_eq!(limiter.next(now), Ok((pod, true)));
        limiter.not_sent(true);
    }
}
