//! The tools of a chat completion body, as vLLM hands them to a template.
//!
//! vLLM reads them into pydantic models and writes these out again (vLLM 0.33, `ChatCompletionToolsParam` and
//! `FunctionDefinition`). So the fields of a tool are `type` and `function`; those of a function are `name`, `description`
//! and `parameters`, null where they were not given, and `strict` where it was; in this order, and no others. Templates
//! that write a tool as JSON show all of that.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::InvalidChat;
use super::chat::field;
use super::message::invalid;

/// The tools in the form that templates see; none if there are none.
pub(super) fn tools(given: Option<Vec<Value>>) -> Result<Option<Value>, InvalidChat> {
    let Some(given) = given else { return Ok(None) };
    if given.is_empty() {
        return Err(invalid("tools", "a list of at least one"));
    }
    let tools: Vec<Value> = given.iter().map(tool).collect::<Result<_, _>>()?;
    Ok(Some(Value::from(tools)))
}

fn tool(given: &Value) -> Result<Value, InvalidChat> {
    let malformed = |allowed| invalid("tools", allowed);
    let kind = given.get_attr("type").unwrap_or_default();
    if !kind.is_undefined() && kind.as_str() != Some("function") {
        return Err(malformed("tools of the type \"function\""));
    }
    let deferred = |map: &Value| field(map, "defer_loading");
    let function = field(given, "function").filter(|function| function.kind() == ValueKind::Map);
    let function = function.ok_or_else(|| malformed("objects with a function"))?;
    if deferred(given).is_some() || deferred(&function).is_some() {
        return Err(malformed("tools that are not deferred"));
    }
    let name = field(&function, "name").filter(|name| name.kind() == ValueKind::String);
    let name = name.ok_or_else(|| malformed("functions with a name"))?;
    let typed = |field_name, wanted, allowed| match field(&function, field_name) {
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
