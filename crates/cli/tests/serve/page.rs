//! The web page in a real browser: Chromium, driven by Playwright. The flows are in `page/`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use selvedge_agent::Session;
use selvedge_journal::Journal;
use serde_json::{Value, json};

use crate::answer_encoding::{block, text, think};
use crate::fixture::ServeFixture;
use crate::isolation::last_text;
use crate::page_browser::{browser, next_line, read_lines, require_browser};
use crate::server::{Asked, Reply};
use crate::support::api::{ApiClient, ApiServer};
use crate::support::{TEST_TIMEOUT, store};

/// Length of a long answer without a line break, in bytes.
const LONG_LINE: usize = 200_000;
/// Past turns of a long session; each has two items.
const LONG_SESSION_TURNS: usize = 1000;
/// Past turns of a session with 10,000 items.
const HUGE_SESSION_TURNS: usize = 5000;
/// Past turns of the session of a picture: more than a prompt can contain in full.
const PICTURE_SESSION_TURNS: usize = 700;
/// Past turns of a session from which lessons are learned.
const MEMORY_SESSION_TURNS: usize = 45;

/// A script with two calls at once: both wait for the file `go`, and the second one fails.
const FOLLOWED: &str = "// Run the tests and the linter at the same time.\n\
    const [tests, lint] = await Promise.all([\n  \
    tools.exec({ command: ['sh', 'run-tests.sh'] }),\n  \
    tools.exec({ command: ['sh', 'lint.sh'] }),\n\
    ]);\nreturn { exit: lint.exitCode };";
/// Programs of that script.
const PROGRAMS: [(&str, &str); 2] = [
    (
        "run-tests.sh",
        "echo running 3 tests; until [ -e go ]; do sleep 0.05; done; echo 3 passed",
    ),
    (
        "lint.sh",
        "until [ -e go ]; do sleep 0.05; done; echo login.js:3: unused variable; exit 3",
    ),
];

const HOSTILE: &str = "<script>window.hacked = 1</script>\n\n<img src=x onerror='window.hacked = 2'>\n\n\
    <svg onload='window.hacked = 3'></svg> <iframe src='/'></iframe> <style>* { display: none }</style>\n\n\
    [a](javascript:window.hacked=4) ![b](https://evil.example/b.png) <a href='//evil.example'>c</a>\n\n\
    \u{202e}reversed\u{2066} \u{1b}[31mred\u{1b}[0m \u{0}\n\n\
    ```html\n<script>window.hacked = 5</script>\n</pre><img src=x onerror='window.hacked = 6'>\n```\n\n\
    | a |\n|---|\n| <form action=//evil.example><input></form> |\n\nthe end\n";

/// Calls whose arguments, output and reason have escape sequences and change the direction of text.
const HIDDEN_CALLS: &str = "await tools.exec({\n  \
    command: ['printf', '\\\\033[31mnot \\u202e red'],\n});\n\
    await tools.exec({\n  command: ['rm', '-rf', 'doomed\\u202e'],\n  \
    approvalContext: 'quite \\u202e safe \\u001b[1m',\n});";

/// An answer in Arabic and Hebrew, with English and code in between.
const RIGHT_TO_LEFT: &str = "مرحبا بالعالم، شغّل `cargo test` ثم أرسل النتيجة.\n\n\
    - שלום עולם, run `make`\n- an English item\n\n\
    > اقتباس\n\n| عمود | b |\n|---|---|\n| قيمة | 2 |\n\n\
    ```ts\nconst text = 'سلام';\n```\n";

/// A model that does what the last message says.
pub(crate) fn obeys(asked: &Asked) -> Reply {
    let last = last_text(asked);
    let last = last.as_str();
    // Earlier turns may stand in tags before the message.
    let newest = last
        .rsplit_once("</T-")
        .and_then(|(_, rest)| rest.split_once('>'));
    let last = newest.map_or(last, |(_, newest)| newest.trim());
    let script = |code: &str| vec![text("I use a script.\n\n"), text(&block(code))].into();
    match last {
        last if last.contains("\"exit\":3") => {
            vec![text("It is **done**.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")].into()
        }
        last if last.contains("was allowed") => vec![text("allowed")].into(),
        last if last.contains("was denied") => vec![text("denied")].into(),
        last if last.contains("SandboxViolationError") => vec![text("It was not written.")].into(),
        "follow" => {
            let answer = [think("A script is best."), text("I use a script.\n\n")];
            [&answer[..], &[text(&block(FOLLOWED))]].concat().into()
        }
        // The server is killed while the second answer arrives.
        last if last.contains("phase one") => match asked.number {
            1 => Reply::Hang(vec![text("The first half of an answer")]),
            _ => vec![text("It is **done**.")].into(),
        },
        "interrupted" => script("return 'phase one'"),
        "wait" => script("await tools.exec({ command: ['sleep', '600'] });"),
        "count" => script(
            "await tools.exec({ command: ['sh', '-c', \
             'i=0; until [ -e go ]; do i=$((i+1)); echo line $i; sleep 0.05; done; exit 3'] });",
        ),
        "tick" => script(
            "await tools.exec({ command: ['sh', '-c', \
             'while true; do echo tick >> ticks; sleep 0.05; done'] });",
        ),
        "change course" => {
            let knows_turn = asked.body.to_string().contains(">> ticks");
            vec![text(&format!("The course was changed: {knows_turn}"))].into()
        }
        "rtl" => vec![text(RIGHT_TO_LEFT)].into(),
        "half" => Reply::Hang(vec![text("The first half of an answer")]),
        "please" => script(
            "// Delete the old build.\ntry {\n  \
             await tools.exec({ command: ['rm', '-rf', 'doomed'] });\n  \
             return 'was allowed';\n} catch (error) {\n  \
             return 'was denied: ' + error.message;\n}",
        ),
        "strictly" => script("await tools.exec({ command: ['rm', '-rf', 'doomed'] });"),
        "talk" => script(
            "await tools.exec({ command: ['sh', '-c', 'echo step one; echo step two; sleep 600'] });",
        ),
        "keep notes" => script(
            "await tools.writeFile({ path: 'notes.txt', content: 'a note\\n' });\nreturn 'noted';",
        ),
        "fail" => script(
            "await tools.writeFile({ path: 'a.txt', content: 'a' });\n\
             await tools.writeFile({ path: '/etc/selvedge-test', content: 'a' });",
        ),
        "patch" => script(
            "await tools.applyPatch('*** Begin Patch\\n*** Add File: patched.txt\\n\
             +one new line\\n*** End Patch');\nreturn 'patched';",
        ),
        "fetch" => {
            script("await tools.fetchUrl({ urls: ['http://127.0.0.1:9/page?with=a%20query'] });")
        }
        "use a server" => script("return (await tools.search('x')).length"),
        "break" => Reply::Fail(400, "a broken request".to_owned()),
        "queue" => script(
            "const wait = () => tools.exec({ command: ['sleep', '0.2'] });\n\
             await Promise.all(Array.from({ length: 12 }, wait));",
        ),
        "hostile" => vec![text(HOSTILE)].into(),
        "hidden" => script(HIDDEN_CALLS),
        "long line" => script(
            "const { stdout } = await tools.exec({ command: ['sh', '-c', \
             'head -c 5000000 /dev/zero | tr \"\\\\0\" x'] }); return 'a long line'",
        ),
        last if last.contains("a long line") => vec![text(&"x".repeat(LONG_LINE))].into(),
        last => vec![text(&format!("You said {last}"))].into(),
    }
}

/// A question and its answer, of which some are long.
fn past_turn(turn: usize) -> [String; 2] {
    let paragraphs = "A paragraph.\n\n".repeat(4 * (turn % 7));
    [
        format!("Question {turn}"),
        format!("Answer **{turn}**\n\n{paragraphs}"),
    ]
}

/// A question about a project and its answer, as people see them in a picture.
fn picture_turn(turn: usize) -> [String; 2] {
    let areas = [
        "the login form",
        "the session cookie",
        "the export of invoices",
        "the rate limit",
        "the search index",
        "the nightly backup",
        "the password reset",
    ];
    let area = areas[turn % areas.len()];
    let answer = format!(
        "I read the code of {area} and ran its tests, {} of which pass. The check happens before \
         the request reaches the database, so that a rejected request costs little.\n\n\
         - `src/{}.js` decides, and nothing else calls it\n\
         - a missing value counts as wrong, which the documentation also says\n\n\
         I changed nothing. If you want, I write a test for the empty value first, and then move \
         the check to the place where the other ones are.",
        3 + turn % 40,
        area.rsplit(' ').next().unwrap_or_default(),
    );
    [
        format!("How does {area} handle a request without a value? Please do not change it yet."),
        answer,
    ]
}

/// Returns the number of processes in a folder that write to the file `ticks`.
fn tick_commands(folder: &Path) -> usize {
    let folder = folder.canonicalize().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap();
    let processes = processes.filter_map(|entry| Some(entry.ok()?.path()));
    let here = processes.filter(|process| {
        let cwd = process.join("cwd").read_link();
        cwd.is_ok_and(|cwd| cwd == folder)
    });
    let commands = here.filter_map(|process| std::fs::read_to_string(process.join("cmdline")).ok());
    commands
        .filter(|command| command.contains(">> ticks"))
        .count()
}

/// Makes a folder a repository, and commits what is in it.
fn commit_all(folder: &Path) {
    for args in [
        &["init", "-q"][..],
        &["add", "-A"],
        &["commit", "-q", "-m", "x"],
    ] {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        let output = git.args(args).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
}

/// A server, and what flows ask of it.
pub struct PageTest {
    pub fixture: ServeFixture,
    pub server: Option<ApiServer>,
    pub client: ApiClient,
    /// The session that a flow created last.
    session: String,
}

impl PageTest {
    pub fn start() -> Self {
        // The model reads the last message as a whole, which must not quote earlier ones.
        Self::with_settings("memory.recall = false")
    }

    /// Starts a server whose requests for approval wait for ten minutes.
    fn with_patience() -> Self {
        let limit = "script_harness.limits.approval_timeout_ms = 600000";
        Self::with_settings(&format!("memory.recall = false\n{limit}"))
    }

    /// Starts a server with these settings.
    fn with_settings(settings: &str) -> Self {
        let config = format!(
            "{settings}\n\
            models.mock.prices = {{ input = 100.0, output = 0.0, cached_input = 100.0 }}\n\
            [workspace]\ndocuments = [\"issues/**/*.md\"]\n\
            [mcp_servers.broken]\ncommand = \"selvedge-no-such-program\"\n\
            [mcp_servers.unused]\ncommand = \"true\"\nenabled = false\n\
             [environments.careful]\napproval_policy = \"untrusted\""
        );
        let fixture = ServeFixture::with_config(&config, obeys);
        let folder = fixture.workspace.work();
        std::fs::create_dir_all(folder.join("doomed")).unwrap();
        std::fs::create_dir_all(folder.join("issues")).unwrap();
        let issue = "---\nkind: issue\nstatus: open\ntitle: Login accepts empty passwords\n\
            # Who looks at it\nowner:   'ann'   # not bob\nlabels: [b,   a]\n---\n\
            `check` returns true.\n";
        std::fs::write(folder.join("issues/1.md"), issue).unwrap();
        for (name, program) in PROGRAMS {
            std::fs::write(folder.join(name), program).unwrap();
        }
        let (server, client) = fixture.start();
        Self {
            fixture,
            server: Some(server),
            client,
            session: String::new(),
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.client.address)
    }

    /// Does what a flow asks for, and returns the answer.
    fn answer(&mut self, asked: &str) -> Value {
        let folder = self.fixture.workspace.work();
        match asked {
            "login" => {
                let args = ["serve", "login", "--url", &self.url()];
                let output = self.fixture.workspace.command(&args).output().unwrap();
                json!(String::from_utf8(output.stdout).unwrap().trim())
            }
            "go" => {
                std::fs::write(folder.join("go"), "").unwrap();
                Value::Null
            }
            "two folders" => {
                commit_all(&folder);
                let (other, _) = self.fixture.other_workspace("other");
                json!([folder.canonicalize().unwrap(), other])
            }
            "doomed exists" => json!(folder.join("doomed").exists()),
            "document" => json!(std::fs::read_to_string(folder.join("issues/1.md")).unwrap()),
            "mixed document" => {
                let text = "---\r\nkind: issue\nstatus: open\r\ntitle: Mixed\n---\n\
                    One\r\ntwo\nthree\r\n";
                std::fs::write(folder.join("issues/1.md"), text).unwrap();
                Value::Null
            }
            "hidden document" => {
                let text = "---\nkind: issue\nstatus: open\n---\nIts name is hidden.\n";
                std::fs::write(folder.join("issues/\u{202e}dm.md"), text).unwrap();
                Value::Null
            }
            "wait for the answer" => self.client.answer(&self.session, 1),
            "kill" => {
                self.server.take().unwrap().kill();
                Value::Null
            }
            "restart" => {
                let args = ["serve", "--addr", &self.client.address];
                let server = ApiServer::listen(self.fixture.workspace.command(&args));
                self.server = Some(server);
                Value::Null
            }
            "long session" => self.long_session(),
            "huge session" => self.huge_session(),
            "picture session" => self.picture_session(),
            "ticks" => {
                let ticks = std::fs::read_to_string(folder.join("ticks"));
                json!(ticks.unwrap_or_default().lines().count())
            }
            "tick commands" => json!(tick_commands(&folder)),
            "memory session" => self.memory_session(),
            "all projects" => {
                let lessons = self.client.get("/api/v1/memory/lessons").body;
                let mut lessons = lessons["lessons"].as_array().unwrap().iter();
                let steps = lessons.find(|lesson| lesson["kind"] == "layer").unwrap();
                let id = steps["id"].as_str().unwrap();
                let args = ["memory", "review", "--user", id];
                let moved = self.fixture.workspace.command(&args).output().unwrap();
                json!(moved.status.success())
            }
            "lesson" => {
                let content = "The queue in heron is started with `make heron`.";
                let lesson = json!({"kind": "problem", "title": "Heron", "content": content});
                self.client.post("/api/v1/memory/lessons", lesson).body
            }
            "stop" => {
                let path = format!("/api/v1/sessions/{}/stop", self.session);
                self.client.post(&path, json!({"children": false})).body
            }
            "lessons" => self.client.get("/api/v1/memory/lessons").body["lessons"].clone(),
            "notes exist" => json!(folder.join("notes.txt").exists()),
            "new document" => {
                json!(std::fs::read_to_string(folder.join("issues/shop-ideas.md")).unwrap())
            }
            asked if asked.starts_with("untitled ") => {
                let prompt = asked.trim_start_matches("untitled ");
                self.session = self.client.session(json!({"prompt": prompt}));
                json!(self.session)
            }
            asked if asked.starts_with("file ") => {
                let path = folder.join(asked.trim_start_matches("file "));
                json!(std::fs::read_to_string(path).ok())
            }
            asked => match asked.strip_prefix("session ") {
                Some(prompt) => {
                    let _ = std::fs::remove_file(folder.join("go"));
                    let (title, prompt) = prompt.split_once(": ").unwrap_or(("<b>Try", prompt));
                    let request = json!({"title": title, "prompt": prompt});
                    self.session = self.client.session(request);
                    json!(self.session)
                }
                None => panic!("a flow asks for {asked:?}"),
            },
        }
    }

    /// Creates a session with the given questions and answers, and returns its id.
    fn session_with_history(&self, turns: impl IntoIterator<Item = [String; 2]>) -> Value {
        let turns = turns.into_iter().flat_map(|[question, answer]| {
            [
                json!({"role": "user", "content": question}),
                json!({"role": "assistant", "content": answer}),
            ]
        });
        let last = json!({"role": "user", "content": "hello"});
        let messages: Vec<Value> = turns.chain([last]).collect();
        let request = json!({"model": "default", "messages": messages});
        let answer = self.client.post("/v1/chat/completions", request);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["metadata"]["session"].clone()
    }

    /// Creates a session from which a preference, a layer and topics are learned.
    pub fn memory_session(&self) -> Value {
        let turns = (0..MEMORY_SESSION_TURNS).map(|turn| {
            let steps: String = (0..25)
                .map(|step| format!("Col c{turn}_{step} to tab t{step}. "))
                .collect();
            match turn {
                0 => "From now on always answer in German.".to_owned(),
                1..=12 => format!("The migration {turn} is next. {steps}"),
                turn => format!("Question {turn}"),
            }
        });
        let session = self.session_with_history(turns.map(|text| [text, "Done.".to_owned()]));
        let args = ["memory", "distill"];
        let output = self.fixture.workspace.command(&args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        session
    }

    /// Creates a session with 10,000 items. A client can send at most 1,000 past turns, so they are
    /// written to the journal.
    fn huge_session(&self) -> Value {
        let session = self.client.session(json!({"title": "Huge"}));
        let journal = Journal::open(store::store(&self.fixture.workspace.home())).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let mut open = Session::open(&journal, &session).await.unwrap();
            for turn in 1..=HUGE_SESSION_TURNS {
                let [question, answer] = past_turn(turn);
                open.add_past_turn(&question, &answer).await.unwrap();
            }
        });
        json!({"session": session, "total": 2 * HUGE_SESSION_TURNS})
    }

    /// Creates a session whose memory has turns at all levels.
    fn picture_session(&self) -> Value {
        self.session_with_history((1..=PICTURE_SESSION_TURNS).map(picture_turn))
    }

    /// Creates a session with many items.
    fn long_session(&self) -> Value {
        let session = self.session_with_history((1..=LONG_SESSION_TURNS).map(past_turn));
        let total = 2 * LONG_SESSION_TURNS + 2;
        json!({"session": session, "total": total})
    }
}

/// Runs a flow of `page/flows.mjs` against a server of its own.
fn run_flow(name: &str) {
    run_program("flows.mjs", name, PageTest::start);
}

/// Runs a program of `page/` with an argument against a server of its own.
fn run_program(program: &str, name: &str, start: impl Fn() -> PageTest) {
    let Some((folder, chromium)) = browser() else {
        return;
    };
    let mut test = start();
    let flows = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page");
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/lighthouse");
    let lighthouse = std::env::var_os("SELVEDGE_LIGHTHOUSE").map_or_else(default, PathBuf::from);
    let screenshots = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    let mut node = Command::new("node")
        .arg(flows.join(program))
        .arg(name)
        .env("SELVEDGE_BROWSER_FOLDER", folder)
        .env("SELVEDGE_CHROMIUM", chromium)
        .env("SELVEDGE_LIGHTHOUSE", lighthouse)
        .env("SELVEDGE_PAGE_URL", test.url())
        .env("SELVEDGE_SCREENSHOTS", screenshots)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answers = node.stdin.take().unwrap();
    let lines = read_lines(node.stdout.take().unwrap());
    let mut has_passed = false;
    while let Some(line) = next_line(&lines, &mut node, name) {
        match line.strip_prefix("ask ") {
            Some(asked) => {
                let asked: String = serde_json::from_str(asked).unwrap();
                writeln!(answers, "{}", test.answer(&asked)).unwrap();
            }
            None => has_passed |= line == "passed",
        }
    }
    let deadline = Instant::now() + TEST_TIMEOUT;
    while node.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the browser does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(has_passed, "the flow {name} failed");
}

macro_rules! flows {
    ($($test:ident = $flow:literal;)+) => {
        $(#[test]
        fn $test() {
            run_flow($flow);
        })+
    };
}

flows! {
    a_person_creates_a_session_and_follows_its_script = "create_and_follow";
    a_person_stops_and_steers_a_turn = "stop_and_steer";
    a_person_steers_a_running_turn = "steer";
    right_to_left_text_has_its_direction = "right_to_left";
    a_person_approves_and_denies_calls = "approve_and_deny";
    a_reload_in_the_middle_shows_each_item_once = "reload_in_the_middle";
    the_page_follows_a_killed_and_restarted_server = "kill_and_restart";
    two_browsers_show_the_same_session = "two_browsers";
    a_hostile_transcript_runs_nothing_and_breaks_nothing = "hostile";
    hidden_characters_are_visible_in_every_view = "hidden_characters";
    a_long_transcript_has_few_elements = "long_transcript";
    the_other_views_work = "other_views";
    health_shows_servers_the_queue_and_errors = "health";
    a_person_edits_a_script_and_resumes_its_run = "edit_and_resume";
    a_document_is_replaced_only_by_its_editor = "documents";
    the_timeline_shows_how_long_calls_waited = "waiting_times";
    a_person_reviews_and_edits_what_was_learned = "review_memory";
    a_person_creates_a_document_with_a_form = "create_document";
    a_question_comes_before_edits_are_lost = "unsaved_edits";
    a_person_creates_a_channel_and_mentions_a_session = "channels";
    a_channel_of_another_client_appears = "channel_news";
    a_request_in_a_session_is_visible_and_decided_with_the_keyboard = "asked_in_session";
    a_request_that_is_asked_while_the_list_loads_stays_visible = "asked_while_loading";
    sessions_without_a_title_are_named_by_their_first_message = "titles";
    a_running_run_shows_its_calls_and_their_output = "running_run";
    a_person_undoes_the_changes_of_a_turn = "undo_turn";
    the_parts_of_the_memory_are_found_on_a_small_screen = "small_memory";
    a_used_login_url_says_what_to_do = "used_login";
    a_request_says_until_when_it_waits_and_is_decided_in_its_run = "asked_in_run";
    the_output_of_a_stopped_call_stays = "stopped_output";
    a_person_adds_a_lesson = "add_lesson";
    an_older_answer_does_not_replace_a_newer_one = "older_answers";
    runs_are_named_by_what_they_do_and_show_results = "run_names";
    a_session_that_no_server_answers_waits = "unserved_session";
    a_login_without_a_folder_says_what_to_do = "no_folder";
    runs_with_failures_are_found = "failed_runs";
    health_says_which_runs_it_looked_at = "health_words";
    typed_words_and_pastes_decide_nothing = "typed_words";
    a_hidden_tab_says_that_a_request_waits = "hidden_tab";
    what_the_memory_added_can_be_opened_and_stays = "recalled";
    dialogs_editors_and_the_login_are_accessible = "accessible_parts";
    nothing_moves_if_a_person_wants_no_motion = "reduced_motion";
    a_session_with_settings_asks_about_a_patch_with_its_diff = "asked_with_diff";
    a_request_for_a_web_page_shows_its_url = "asked_with_url";
    a_running_script_can_be_clicked_and_keeps_the_focus = "busy_script";
    a_message_is_sent_once_and_later_words_stay = "sent_once";
    a_session_that_was_opened_offline_is_shown_later = "opened_offline";
    stop_and_send_stops_the_turn_before_the_message = "stop_then_send";
    a_slow_answer_does_not_replace_what_was_opened_later = "slow_answers";
    begun_edits_are_not_lost = "begun_edits";
    a_click_on_a_request_makes_digits_keys_again = "digits_after_words";
    requests_are_announced_and_stay_decided = "announced";
    a_session_that_another_client_deletes_says_so = "deleted_session";
    wrong_addresses_show_a_view = "wrong_addresses";
}

#[test]
fn the_page_is_accessible_and_fits_every_screen() {
    run_program("flows.mjs", "accessible", PageTest::with_patience);
}

#[test]
fn what_was_recalled_and_how_turns_ended_stays_after_a_reload() {
    let memory = "memory.scope = \"project\"\nmemory.recall_timeout_ms = 30000";
    run_program("flows.mjs", "turn_notes", || {
        PageTest::with_settings(memory)
    });
}

#[test]
#[ignore = "writes the pictures of docs/page.md: run `make screenshots`"]
fn screenshots() {
    require_browser();
    run_flow("screenshots");
}

#[test]
#[ignore = "needs Lighthouse: run `make lighthouse`"]
fn lighthouse() {
    require_browser();
    run_program("lighthouse.mjs", "", PageTest::with_patience);
}
