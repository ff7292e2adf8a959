//! What models and providers of the configuration change: which model a sub-agent uses, the limits
//! of scripts, the order of blocks, and the tools that are offered.

use serde_json::{Value, json};

use super::server::{Asked, Reply};
use super::{Fixture, block, configured, err, out, text};

/// Returns all messages of a request as text.
fn words(asked: &Asked) -> String {
    asked.body["messages"].to_string()
}

/// Answers the task with these blocks, and their results with the result itself.
fn running(answer: String) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    move |asked| match words(asked).contains("Result of ") {
        true => {
            let last = asked.body["messages"].as_array().unwrap().last().unwrap();
            vec![text(last["content"].as_str().unwrap_or_default())].into()
        }
        false => vec![text(&answer)].into(),
    }
}

/// Runs `selvedge exec` with these arguments, and returns the answer to its task.
fn answer(fixture: &Fixture, args: &[&str]) -> String {
    let output = fixture.run(&[&["exec", "-q", "go"], args].concat());
    assert!(output.status.success(), "{}", err(&output));
    out(&output)
}

#[test]
fn a_script_can_name_a_model_of_another_configured_provider() {
    let script = block(
        "const chat = await tools.agents.llm.chat({ prompt: 'q1', model: 'other/m1' });\n\
         const agent = await tools.agents.launch.sync({ prompt: 'q2', model: 'other/m2' });\n\
         const own = await tools.agents.llm.chat({ prompt: 'q3', model: 'mock/m3' });\n\
         const refused = await tools.agents.llm.chat({ prompt: 'q4', model: 'anthropic/m4' })\n\
           .catch((error) => error.message + ' | ' + error.suggestions);\n\
         return [chat.text, agent.message, own.text, refused];",
    );
    let main = running(script);
    let fixture = Fixture::new(move |asked| {
        let question = words(asked);
        match ["q1", "q2", "q3"].iter().find(|name| {
            question.contains(&format!("\"{name}\"")) && !question.contains("Result of ")
        }) {
            Some(name) => {
                let model = asked.body["model"].as_str().unwrap();
                vec![text(&format!("{name} {model} {}", asked.path))].into()
            }
            None => main(asked),
        }
    });
    let url = &fixture.server.url;
    let other = format!("[model_providers.other]\nbase_url = \"{url}\"\nwire_api = \"messages\"\n");
    configured(&fixture, &other);
    let said = answer(&fixture, &[]);
    for expected in [
        "q1 m1 /v1/messages",
        "q2 m2 /v1/messages",
        "q3 m3 /v1/chat/completions",
        "scripts may not use the provider `anthropic`",
        "add the line `[model_providers.anthropic]` to your own config.toml",
    ] {
        assert!(said.contains(expected), "{expected} is missing in {said}");
    }
}

#[test]
fn a_script_cannot_name_a_provider_of_the_project_or_a_server_that_was_not_accepted() {
    let script = block(
        "const refused = (model) => tools.agents.llm.chat({ prompt: 'q', model })\n\
           .then(() => model + ' answered', (error) => error.message);\n\
         return [await refused('openrouter/m'), await refused('theirs/m'),\n\
           await refused('lmstudio/m')];",
    );
    let fixture = Fixture::new(running(script));
    configured(&fixture, "[model_providers.lmstudio]\n");
    let project = fixture.work().join("work/.selvedge");
    std::fs::create_dir_all(&project).unwrap();
    let url = &fixture.server.url;
    let theirs =
        format!("[model_providers.openrouter]\n[model_providers.theirs]\nbase_url = \"{url}\"\n");
    std::fs::write(project.join("config.toml"), theirs).unwrap();
    let said = answer(&fixture, &["--trust"]);
    for expected in [
        "scripts may not use the provider `openrouter`",
        "scripts may not use the provider `theirs`",
        "scripts may not use the model server at ",
    ] {
        assert!(said.contains(expected), "{expected} is missing in {said}");
    }
}

#[test]
fn agents_of_another_model_have_its_mode_and_its_tools() {
    let script = "const strict = await tools.agents.launch.sync({ prompt: 'q1', model: 'other/m' });\n\
                  return strict.message";
    let main = running(block(script));
    let fixture = Fixture::new(move |asked| {
        let question = words(asked);
        if !question.contains("q1") || question.contains("strict") {
            return main(asked);
        }
        let tools = asked.body["tools"].as_array().unwrap();
        let names: Vec<&str> = tools
            .iter()
            .filter_map(|tool| tool["function"]["name"].as_str())
            .collect();
        vec![text(&names.join(" "))].into()
    });
    let url = &fixture.server.url;
    configured(
        &fixture,
        &format!(
            "[model_providers.other]\nbase_url = \"{url}\"\ntool_pack = \"file-ops\"\n\
             script_harness = \"disabled\"\n"
        ),
    );
    let said = answer(&fixture, &[]);
    let (_, names) = said.split_once("value").unwrap();
    assert!(
        names.contains("read_file") && !names.contains("script") && !names.contains("shell"),
        "{names}"
    );
}

#[test]
fn limits_can_be_set_for_a_provider_and_for_a_model() {
    let code = "const { timeoutMs, memoryMb, remainingToolBudget } = context.sandbox;\n\
                return [timeoutMs, memoryMb, remainingToolBudget].join(' ')";
    let fixture = Fixture::new(running(block(code)));
    configured(
        &fixture,
        "[model_providers.mock.script_harness]\nmode = 'enabled'\n\
         [model_providers.mock.script_harness.limits]\ntimeout_ms = 11000\nmax_tool_calls = 7\n\
         memory_mb = 40\n\
         [models.mock.script_harness.limits]\ntimeout_ms = 12000\n",
    );
    assert!(answer(&fixture, &[]).contains("12000 40 7"));
    assert!(answer(&fixture, &["--max-calls", "5"]).contains("12000 40 5"));
    assert!(answer(&fixture, &["--provider", "keyless", "--model", "x"]).contains("30000 96 32"));
}

#[test]
fn blocks_run_at_the_same_time_if_the_configuration_says_so() {
    // Each block waits for the file of the other one.
    let waits = |own: &str, other: &str| {
        block(&format!(
            "await tools.writeFile({{ path: '{own}', content: '' }});\n\
             for (let i = 0; i < 28; i++) {{\n\
               try {{ await tools.readFile({{ path: '{other}' }}); return 'met' }} catch {{}}\n\
               await new Promise((done) => setTimeout(done, 100));\n\
             }}\n\
             return 'alone'"
        ))
    };
    let answers = format!("{}\n{}", waits("first", "second"), waits("second", "first"));
    let fixture = Fixture::new(running(answers));
    configured(&fixture, "[script_harness]\nblocks = \"parallel\"\n");
    let said = answer(&fixture, &[]);
    assert_eq!(said.matches("met").count(), 2, "{said}");
}

#[test]
fn a_task_can_be_an_agent() {
    let script = block(
        "const task = tools.spawn.exec('agents.launch.sync', { prompt: 'the task' });\n\
         return (await task.done).message",
    );
    let main = running(script);
    let fixture = Fixture::new(move |asked| match words(asked) {
        words if words.contains("\"the task\"") => vec![text("done by the task")].into(),
        _ => main(asked),
    });
    configured(&fixture, "[script_harness.expose]\nenable_spawn = true\n");
    let said = answer(&fixture, &[]);
    assert!(said.contains("done by the task"), "{said}");
}

#[test]
fn a_question_can_begin_with_stored_prompts() {
    let script = block(
        "const { keys } = await tools.prompts.save(['Be terse.', 'Use French.']);\n\
         const saved = await tools.saveToFc({ content: 'A fact.', title: 'fact' });\n\
         const promptKeys = [...keys, saved.fileKey];\n\
         const missing = await tools.agents.llm.chat({ promptKeys: ['FNONE'] })\n\
           .catch((error) => error.message);\n\
         return [(await tools.agents.llm.chat({ promptKeys, prompt: 'Say hi.' })).text, missing]",
    );
    let main = running(script);
    let fixture = Fixture::new(move |asked| {
        let first = asked.body["messages"][0]["content"].as_str();
        match first == Some("Be terse.\n\nUse French.\n\nA fact.\n\nSay hi.") {
            true => vec![text("Salut.")].into(),
            false => main(asked),
        }
    });
    let said = answer(&fixture, &[]);
    assert!(said.contains("Salut."), "{said}");
    assert!(
        said.contains("no document in the File Cabinet has the key `FNONE`"),
        "{said}"
    );
}

#[test]
fn the_flavours_of_tools_are_selected_per_model_family() {
    let fixture = Fixture::new(|_| vec![text("done")].into());
    let tool = |asked: &Asked, name: &str| -> Value {
        let tools = asked.body["tools"].as_array().unwrap();
        let named = |tool: &&Value| tool["function"]["name"] == name;
        tools
            .iter()
            .find(named)
            .map(|tool| tool["function"].clone())
            .unwrap_or_default()
    };
    answer(&fixture, &[]);
    configured(
        &fixture,
        "[models.\"moc*\"]\nshell = \"command-line\"\npatch = \"json\"\nstrict_schemas = true\n",
    );
    answer(&fixture, &[]);
    let asked = fixture.server.asked();
    assert_eq!(tool(&asked[0], "shell")["name"], "shell");
    assert_eq!(tool(&asked[1], "shell"), Value::Null);
    let shell = tool(&asked[1], "shell_command");
    let kind = &shell["parameters"]["properties"]["command"]["type"];
    assert_eq!((kind, &shell["strict"]), (&json!("string"), &json!(true)));
    let patch = tool(&asked[1], "apply_patch");
    assert!(patch["parameters"]["properties"]["updated_content"].is_object());
}

#[test]
fn the_providers_own_web_search_is_requested_if_it_is_switched_on() {
    let fixture = Fixture::new(|_| vec![text("done")].into());
    let url = fixture.server.url.clone();
    configured(
        &fixture,
        &format!(
            "[model_providers.search]\nbase_url = \"{url}\"\nwire_api = \"responses\"\n\
             [features]\nweb_search = true\n"
        ),
    );
    answer(&fixture, &["--provider", "search", "--model", "x"]);
    let asked = fixture.server.asked();
    let tools = asked[0].body["tools"].as_array().unwrap();
    assert!(tools.contains(&json!({"type": "web_search"})), "{tools:?}");
}
