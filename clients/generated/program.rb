# A batch, a list with a filter and a 404, by the Ruby client that OpenAPI Generator makes. It loads each class of the
# client, too.
require 'uri'
require 'openapi_client'

include OpenapiClient

DEFINITION = 'generated-ruby'

# The client names each class when it is first used.
[OpenapiClient].each { |space| space.constants.each { |name| space.const_get(name) } }

def check(holds, seen)
  abort(seen.inspect) unless holds
end

def config(key, port)
  CreateConfigOperation.new(op: 'create_config', config_definition_key: DEFINITION, config_key: key, data: { port: port })
end

OpenapiClient.configure do |configuration|
  url = URI(ENV.fetch('CONCORD_URL'))
  configuration.scheme = url.scheme
  configuration.host = "#{url.host}:#{url.port}"
  configuration.access_token = ENV.fetch('CONCORD_API_KEY')
end

operations = [
  CreateDefinitionOperation.new(op: 'create_definition', config_definition_key: DEFINITION, indexes: ['port']),
  config('http', 80),
  config('https', 80),
  PatchConfigOperation.new(op: 'patch_config', config_definition_key: DEFINITION, config_key: 'https', patch: { port: 443 })
]
done = BatchApi.new.run_batch(PlainBatch.new(operations: operations))
check(done.data.results.map(&:created) == [true, true, true, false], done)
check(done.data.revision.positive?, done)

page = ConfigsApi.new.list_configs(DEFINITION, filters: { 'port[gte]' => '100' }).data
check(page.meta.total == 1 && page.results[0].config_key == 'https' && page.results[0].data['port'] == 443, page)

begin
  check(false, ConfigsApi.new.read_config(DEFINITION, 'missing'))
rescue ApiError => e
  refusal = NotFoundError.build_from_hash(JSON.parse(e.response_body, symbolize_names: true))
  check(e.code == 404 && refusal.errors[0].code == 'config_not_found', e)
end

check(ClusterApi.new.get_cluster.data.members.size == 1, 'members')
puts 'ruby: a batch, a list with a filter, a 404, the cluster'
