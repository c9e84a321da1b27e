//! Templates disagree about tool calls: DeepSeek-V3's concatenates `arguments` as text, Qwen3-Coder
//! iterates it as a mapping, others apply `tojson` and would quote a text twice; some render a
//! call only if `content` is null, some fail on null. None of it is declared, so at compile time a
//! tiny conversation is rendered in each form and the output looked at (the idea is llama.cpp's).

use serde_json::{json, Map, Value as Json};

use crate::messages::Wants;
use crate::template::{Input, Template};

const KEY: &str = "kun_probe_key";
const VALUE: &str = "kun_probe_value";

fn arguments_object() -> Json {
    json!({ KEY: VALUE })
}

fn arguments_text() -> String {
    format!("{{\"{KEY}\": \"{VALUE}\"}}")
}

fn render(template: &Template, arguments: &Json, content: &Json) -> Option<String> {
    let call = json!({"id": "call_1", "type": "function",
                      "function": {"name": "kun_probe", "arguments": arguments}});
    let messages = json!([
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "name": "kun_probe", "content": "result"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "another"},
    ]);
    let tools = json!([{"type": "function", "function": {
        "name": "kun_probe", "description": "a probe",
        "parameters": {"type": "object", "properties": {}}}}]);
    let input = Input {
        messages: "",
        tools: "",
        extra: "",
        now: 0,
        add_generation_prompt: true,
        normalize: false,
    };
    template
        .render_parsed(&messages, &tools, &Map::new(), &input)
        .ok()
}

fn takes_text(output: &str) -> bool {
    output.contains(&arguments_text())
}

/// A mapping was taken if both halves show and not as Python would print a dict.
fn takes_object(output: &str) -> bool {
    output.contains(KEY) && output.contains(VALUE) && !output.contains(&format!("'{KEY}'"))
}

pub fn probe(template: &Template) -> Wants {
    let contents = [Json::Null, Json::String(String::new())];
    let text = Json::String(arguments_text());
    let object = arguments_object();
    let takes = |content: &Json| {
        let with_text = render(template, &text, content);
        let with_object = render(template, &object, content);
        (
            with_text.is_some_and(|output| takes_text(&output)),
            with_object.is_some_and(|output| takes_object(&output)),
        )
    };
    let [null, empty] = contents.map(|content| takes(&content));
    let wants = Wants {
        text_arguments: null.0 || empty.0,
        object_arguments: null.1 || empty.1,
        null_content: null.0 || null.1,
        empty_content: empty.0 || empty.1,
    };
    if wants.text_arguments || wants.object_arguments {
        wants
    } else {
        Wants::default() // renders no tool calls at all: leave them alone
    }
}
