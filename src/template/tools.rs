//! The tools of a body, as vLLM hands them to a template.
//!
//! vLLM reads them into pydantic models and writes these out again (vLLM 0.33, `ChatCompletionToolsParam` and
//! `FunctionDefinition`). So the fields of a tool are `type` and `function`; those of a function are `name`, `description`
//! and `parameters`, null where they were not given, and `strict` where it was; in this order, and no others. Templates
//! that write a tool as JSON show all of that. The flat tools of `/v1/responses` and those of `/v1/messages` are brought
//! into that form first (`get_function_tools` of `tool_parsers/utils.py`, `_convert_tools` of
//! `entrypoints/anthropic/serving.py`).

use minijinja::Value;
use minijinja::value::ValueKind;

use super::InvalidChat;
use super::chat::{entries, field};
use super::message::invalid;

/// The one argument of the function that a custom tool is shown as.
pub(super) const CUSTOM_TOOL_INPUT: &str = "input";

/// Tools of `/v1/responses` that are not shown to the model.
const BUILT_IN: [&str; 15] = [
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
];

/// The tools of a chat completion; none if there are none.
pub(super) fn tools(given: Option<Vec<Value>>) -> Result<Option<Value>, InvalidChat> {
    let Some(given) = given else { return Ok(None) };
    if given.is_empty() {
        return Err(invalid("tools", "a list of at least one"));
    }
    let tools: Vec<Value> = given.iter().map(tool).collect::<Result<_, _>>()?;
    Ok(Some(Value::from(tools)))
}

/// The tools of `/v1/responses`; none if the list is empty.
pub(super) fn of_responses(given: Option<Vec<Value>>) -> Result<Option<Value>, InvalidChat> {
    let given = given.unwrap_or_default();
    if given.is_empty() {
        return Ok(None);
    }
    let mut tools = Vec::new();
    for given in &given {
        let kind = field(given, "type");
        match kind.as_ref().and_then(Value::as_str) {
            Some("function") => tools.push(function(given)?),
            Some("custom") => tools.push(custom(given)?),
            Some("namespace") => tools.append(&mut namespace(given)?),
            Some(kind) if BUILT_IN.contains(&kind) => {}
            _ => return Err(invalid("tools", "tools of a type that is known")),
        }
    }
    Ok(Some(Value::from(tools)))
}

/// The tools of `/v1/messages`.
pub(super) fn of_messages(given: Option<Vec<Value>>) -> Result<Option<Value>, InvalidChat> {
    let Some(given) = given else { return Ok(None) };
    let tool = |given: &Value| {
        let schema = field(given, "input_schema").filter(|schema| schema.kind() == ValueKind::Map);
        let schema = schema.ok_or_else(|| invalid("tools", "tools with an input_schema"))?;
        let is_typed = schema.get_attr("type").is_ok_and(|kind| !kind.is_undefined());
        let kind = (!is_typed).then(|| (Value::from("type"), Value::from("object")));
        let parameters = Value::from_pairs(entries(&schema).chain(kind));
        function(&Value::from_pairs(entries(given).chain([(Value::from("parameters"), parameters)])))
    };
    let tools: Vec<Value> = given.iter().map(tool).collect::<Result<_, _>>()?;
    Ok(Some(Value::from(tools)))
}

/// A function's name as the model sees it.
pub(super) fn in_namespace(namespace: &str, name: &Value) -> Value {
    match (namespace, name.as_str()) {
        ("", _) | (_, None) => name.clone(),
        (namespace, Some(name)) => Value::from(format!("{namespace}__{name}")),
    }
}

/// A custom tool: a function that takes a text.
fn custom(given: &Value) -> Result<Value, InvalidChat> {
    let format = field(given, "format").and_then(|format| field(&format, "type"));
    if format.is_some_and(|kind| kind.as_str() == Some("grammar")) {
        return Err(invalid("tools", "custom tools without a grammar"));
    }
    let text = [("type", "string"), ("description", "The freeform text payload for this tool.")];
    let properties = Value::from_pairs([(CUSTOM_TOOL_INPUT, Value::from_pairs(text))]);
    let parameters = Value::from_pairs([
        ("type", Value::from("object")),
        ("properties", properties),
        ("required", Value::from(vec![CUSTOM_TOOL_INPUT])),
        ("additionalProperties", Value::from(false)),
    ]);
    let kept = entries(given).filter(|(name, _)| matches!(name.as_str(), Some("name" | "description")));
    function(&Value::from_pairs(kept.chain([(Value::from("parameters"), parameters)])))
}

/// The functions of a namespace.
fn namespace(given: &Value) -> Result<Vec<Value>, InvalidChat> {
    let malformed = || invalid("tools", "namespaces with a name and a list of tools");
    let namespace = field(given, "name").and_then(|name| Some(name.as_str()?.to_owned())).ok_or_else(malformed)?;
    let tools = field(given, "tools").filter(|tools| tools.kind() == ValueKind::Seq).ok_or_else(malformed)?;
    let mut functions = Vec::new();
    for tool in tools.try_iter().map_err(|_| malformed())? {
        let kind = field(&tool, "type");
        match kind.as_ref().and_then(Value::as_str) {
            Some("function") => {
                let name = in_namespace(&namespace, &field(&tool, "name").ok_or_else(malformed)?);
                let named = entries(&tool).chain([(Value::from("name"), name)]);
                functions.push(function(&Value::from_pairs(named))?);
            }
            Some("custom") => {}
            _ => return Err(malformed()),
        }
    }
    Ok(functions)
}

fn tool(given: &Value) -> Result<Value, InvalidChat> {
    let kind = given.get_attr("type").unwrap_or_default();
    if !kind.is_undefined() && kind.as_str() != Some("function") {
        return Err(invalid("tools", "tools of the type \"function\""));
    }
    if field(given, "defer_loading").is_some() {
        return Err(invalid("tools", "tools that are not deferred"));
    }
    let named = field(given, "function").filter(|function| function.kind() == ValueKind::Map);
    function(&named.ok_or_else(|| invalid("tools", "objects with a function"))?)
}

/// A tool of the fields of a function.
fn function(function: &Value) -> Result<Value, InvalidChat> {
    let malformed = |allowed| invalid("tools", allowed);
    if field(function, "defer_loading").is_some() {
        return Err(malformed("tools that are not deferred"));
    }
    let name = field(function, "name").filter(|name| name.kind() == ValueKind::String);
    let name = name.ok_or_else(|| malformed("functions with a name"))?;
    let typed = |field_name, wanted, allowed| match field(function, field_name) {
        Some(value) if value.kind() != wanted => Err(malformed(allowed)),
        value => Ok(value.unwrap_or_else(|| Value::from(()))),
    };
    let description = typed("description", ValueKind::String, "functions whose description is a string")?;
    let parameters = typed("parameters", ValueKind::Map, "functions whose parameters are an object")?;
    let strict = typed("strict", ValueKind::Bool, "functions whose strict is true or false")?;
    let fields = [("name", name), ("description", description), ("parameters", parameters)];
    let strict = Some(("strict", strict)).filter(|(_, strict)| !strict.is_none());
    let function = Value::from_pairs(fields.into_iter().chain(strict));
    Ok(Value::from_pairs([("type", Value::from("function")), ("function", function)]))
}
