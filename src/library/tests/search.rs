//! Searches.

use super::*;
use crate::door::{Search, SearchCursor};

fn filled(count: u32) -> (Queue, Vec<JobId>) {
    let queue = in_memory(Bounds::default());
    let bodies = (0..count).map(|number| format!("order {number:04}"));
    let put = queue.put_many("orders", bodies, PutOptions::default());
    let ids = put.wait().unwrap().into_iter().map(Result::unwrap);
    let ids = ids.collect();
    (queue, ids)
}

fn contains(text: &str) -> Search {
    Search {
        contains: text.into(),
        ..Search::default()
    }
}

/// All pages of a search, and how many they are.
fn all(queue: &Queue, search: &Search, limit: u16) -> (Vec<JobId>, usize) {
    let (mut found, mut pages, mut after) = (Vec::new(), 0, None);
    loop {
        let page = queue.search(search, after.as_ref(), limit).unwrap();
        let page = page.wait().unwrap();
        assert!(page.jobs.len() <= usize::from(limit));
        found.extend(page.jobs);
        pages += 1;
        match page.next {
            None => return (found, pages),
            next => after = next,
        }
    }
}

#[test]
fn a_search_finds_what_contains_a_text_page_by_page() {
    let (queue, ids) = filled(500);
    let of_40: Vec<_> = ids[400..410].to_vec();
    assert_eq!(all(&queue, &contains("040"), 100).0.len(), 11);
    assert_eq!(all(&queue, &contains("er 040"), 100), (of_40.clone(), 1));
    let (found, pages) = all(&queue, &contains("er 040"), 3);
    assert_eq!(found, of_40);
    assert!(pages >= 4, "{pages}");
    assert_eq!(all(&queue, &contains("nowhere"), 100).0, []);
    assert_eq!(all(&queue, &Search::default(), 7).0, ids);
    let most = queue.search(&Search::default(), None, u16::MAX).unwrap();
    assert_eq!(most.wait().unwrap().jobs.len(), 500);
}

#[test]
fn a_search_is_for_tubes_and_states() {
    let (queue, ids) = filled(3);
    let put = queue.put("other", "order 0", PutOptions::default());
    let other = put.wait().unwrap();
    let later = PutOptions {
        delay: Duration::from_secs(1000),
        ..PutOptions::default()
    };
    let delayed = queue.put("orders", "order", later).wait().unwrap();
    let worker = queue.session();
    let job = worker.reserve_job(ids[0]).wait().unwrap();
    job.bury(1).wait().unwrap();
    let _reserved = worker.reserve_job(ids[1]).wait().unwrap();
    let of = |tubes: &str, states: &[JobState]| {
        let search = Search {
            tubes: tubes.into(),
            states: states.to_vec(),
            contains: b"order".to_vec(),
        };
        all(&queue, &search, 100).0
    };
    let each = [JobState::Buried, JobState::Delayed, JobState::Ready];
    assert_eq!(of("orders", &each), [ids[2], delayed, ids[0]]);
    assert_eq!(of("*", &[JobState::Ready]), [ids[2], other]);
    assert_eq!(of("o*er?", &[JobState::Buried]), [ids[0]]);
    assert_eq!(of("nothing", &each), []);
}

#[test]
fn bodies_beyond_a_mebibyte_are_not_searched_but_counted() {
    let options = Options {
        job_size_max: 3 << 20,
        ..Options::default()
    };
    let queue = Queue::open_with(&options, Bounds::default()).unwrap();
    let fits = vec![b'x'; 1 << 20];
    let large = vec![b'x'; (1 << 20) + 1];
    let put = |body: &Vec<u8>| {
        let put = queue.put("t", body.clone(), PutOptions::default());
        put.wait().unwrap()
    };
    let (found, _) = (put(&fits), put(&large));
    let page = queue.search(&contains("xx"), None, 10).unwrap();
    let page = page.wait().unwrap();
    assert_eq!((page.jobs, page.unread), (vec![found], 1));
}

#[test]
fn a_page_ends_when_many_bytes_were_read() {
    let options = Options {
        job_size_max: 1 << 20,
        ..Options::default()
    };
    let queue = Queue::open_with(&options, Bounds::default()).unwrap();
    let body = vec![b'x'; 1 << 20];
    for _ in 0..70 {
        let put = queue.put("t", body.clone(), PutOptions::default());
        put.wait().unwrap();
    }
    let search = contains("y");
    let page = queue.search(&search, None, 10).unwrap().wait().unwrap();
    assert_eq!(page.jobs, []);
    let next = page.next.expect("70 MiB are more than one page reads");
    let page = queue.search(&search, Some(&next), 10).unwrap();
    assert_eq!(page.wait().unwrap().next, None);
}

#[test]
fn a_search_that_cannot_be_is_refused_in_words() {
    let (queue, _) = filled(2);
    let refused = |search: &Search, after: Option<&SearchCursor>| {
        let refused = queue.search(search, after, 10);
        refused.map(drop).unwrap_err().to_string()
    };
    let long = contains(&"x".repeat(1025));
    assert!(refused(&long, None).contains("1024 bytes, not 1025"));
    let states = |states: &[JobState]| Search {
        states: states.to_vec(),
        ..Search::default()
    };
    for wrong in [states(&[]), states(&[JobState::Ready, JobState::Reserved])] {
        assert!(refused(&wrong, None).contains("ready, delayed and buried"));
    }
    let no_tube = Search {
        tubes: "a b".into(),
        ..Search::default()
    };
    assert!(refused(&no_tube, None).contains("matches no tube"));
    let page = queue.search(&Search::default(), None, 1).unwrap();
    let next = page.wait().unwrap().next.unwrap();
    let other = states(&[JobState::Buried]);
    assert!(refused(&other, Some(&next)).contains("other states"));
}

#[test]
fn a_search_whose_caller_gives_up_ends() {
    let (queue, _) = filled(2);
    let (held, let_go) = hold(&queue);
    let search = sent(queue.search(&contains("x"), None, 10).unwrap());
    drop(search);
    drop(let_go);
    block_on(held).unwrap();
    // The first is answered before what it occupied is free, the search too.
    for body in ["the engine", "goes on"] {
        put(&queue, body);
    }
    assert!(queue.load().0 <= 1, "{:?}", queue.load());
}
