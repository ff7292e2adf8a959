//! How long a turn waits for a small model that is slow, wrong, silent or failing, and for an
//! encoder that does not answer.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::schedule::wait_until;
use super::{OfflineFixture, WORK, is_small};
use crate::answer_encoding::text;
use crate::server::Reply;

/// The time limit of memory before a request.
const MEMORY_TIMEOUT: Duration = Duration::from_millis(1_200);
/// What a busy machine may add.
const MAX_NOISE: Duration = Duration::from_secs(20);
/// The time after which the slow model answers.
const SLOW_ANSWER: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq)]
enum SmallModelBehaviour {
    Slow,
    Wrong,
    Silent,
    Failing,
}

/// When the main model was asked.
#[derive(Default)]
struct MainRequest {
    asked: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl MainRequest {
    /// Waits for the request, at most for [`SLOW_ANSWER`].
    fn wait(&self) {
        let asked = self.asked.lock().unwrap();
        let wait = self
            .changed
            .wait_timeout_while(asked, SLOW_ANSWER, |asked| asked.is_none());
        drop(wait.unwrap());
    }
}

/// Starts a server of embeddings that does not answer before the main model is asked. Returns its
/// address, and how many requests it got before.
fn hanging_encoder(main: Arc<MainRequest>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let requests = Arc::<AtomicUsize>::default();
    let counted = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if main.asked.lock().unwrap().is_none() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            main.wait();
            drop(stream);
        }
    });
    (address, requests)
}

/// Runs a turn, and returns the time from the start of `exec` to its request. Returns how many
/// requests the small model got before it, too.
fn measure(memory: &str, behaviour: SmallModelBehaviour) -> (Duration, usize) {
    measure_with(&Arc::default(), memory, "", behaviour)
}

/// Like [`measure`]. `after_import` is added to the configuration before the turn.
fn measure_with(
    main: &Arc<MainRequest>,
    memory: &str,
    after_import: &str,
    behaviour: SmallModelBehaviour,
) -> (Duration, usize) {
    let (of_server, small_before) = (main.clone(), Arc::new(Mutex::new(0)));
    let counted = small_before.clone();
    let fixture = OfflineFixture::new(memory, move |asked| {
        let mut main = of_server.asked.lock().unwrap();
        if !is_small(asked) {
            main.get_or_insert_with(Instant::now);
            of_server.changed.notify_all();
            return vec![text("The database is too large.")].into();
        }
        if main.is_none() {
            *counted.lock().unwrap() += 1;
        }
        match behaviour {
            SmallModelBehaviour::Slow => {
                drop(main);
                of_server.wait();
                vec![text("[1]")].into()
            }
            SmallModelBehaviour::Wrong => vec![text("I like harbours.")].into(),
            SmallModelBehaviour::Silent => Reply::Hang(vec![text("[1, 2")]),
            SmallModelBehaviour::Failing => Reply::Fail(500, "{}".to_owned()),
        }
    });
    fixture.import_project(60);
    let file = fixture.folder("home").join("config.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config + after_import).unwrap();
    let question = "Why is the migration of the billing database slow?";
    let begun = Instant::now();
    let answer = fixture.out(WORK, &["exec", question]);
    assert!(answer.contains("The database is too large."), "{answer}");
    let asked = main.asked.lock().unwrap().unwrap();
    wait_until(|| !fixture.has_process());
    let small_before = *small_before.lock().unwrap();
    (asked - begun, small_before)
}

#[test]
fn no_small_model_delays_a_turn_beyond_the_time_limit() {
    let without = || measure("", SmallModelBehaviour::Wrong).0;
    let without = without().max(without());
    for behaviour in [
        SmallModelBehaviour::Slow,
        SmallModelBehaviour::Wrong,
        SmallModelBehaviour::Silent,
        SmallModelBehaviour::Failing,
    ] {
        let (with, asked) = measure("model = \"mock/small\"", behaviour);
        assert!(asked > 0, "{behaviour:?}: it was not asked");
        assert!(
            with < without + MEMORY_TIMEOUT + MAX_NOISE,
            "{behaviour:?}: {with:?}, {without:?} without a model"
        );
    }
}

#[test]
fn no_encoder_delays_a_turn_beyond_the_time_limit() {
    let without = measure("", SmallModelBehaviour::Wrong).0;
    let main = Arc::default();
    let (address, requests) = hanging_encoder(Arc::clone(&main));
    let config = format!(
        "encoder = \"mine/embed\"\n[model_providers.mine]\n\
         base_url = \"http://{address}/v1\"\nwire_api = \"chat\"\n"
    );
    let (with, _) = measure_with(&main, "", &config, SmallModelBehaviour::Wrong);
    assert!(requests.load(Ordering::SeqCst) > 0, "it was not asked");
    assert!(
        with < without + MEMORY_TIMEOUT + MAX_NOISE,
        "{with:?}, {without:?} without an encoder"
    );
}
