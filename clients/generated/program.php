<?php
// A batch, a list with a filter and a 404, by the PHP client that OpenAPI Generator makes. It loads each class of the
// client, too: PHP finds a function that is declared twice only then. The argument is the folder of the client.

declare(strict_types=1);

use OpenAPI\Client\Api\BatchApi;
use OpenAPI\Client\Api\ClusterApi;
use OpenAPI\Client\Api\ConfigsApi;
use OpenAPI\Client\ApiException;
use OpenAPI\Client\Configuration;
use OpenAPI\Client\Model\CreateConfigOperation;
use OpenAPI\Client\Model\CreateDefinitionOperation;
use OpenAPI\Client\Model\NotFoundError;
use OpenAPI\Client\Model\PatchConfigOperation;
use OpenAPI\Client\Model\PlainBatch;

const DEFINITION = 'generated-php';

error_reporting(E_ALL);
set_error_handler(function (int $level, string $message, string $file, int $line): bool {
    throw new ErrorException($message, 0, $level, $file, $line);
});
ini_set('assert.exception', '1');

require_once 'GuzzleHttp/autoload.php';
$source = $argv[1] . '/lib/';
spl_autoload_register(function (string $name) use ($source): void {
    if (str_starts_with($name, 'OpenAPI\\Client\\')) {
        require_once $source . str_replace('\\', '/', substr($name, strlen('OpenAPI\\Client\\'))) . '.php';
    }
});
$classes = 0;
foreach (new RecursiveIteratorIterator(new RecursiveDirectoryIterator($source, FilesystemIterator::SKIP_DOTS)) as $file) {
    require_once $file->getPathname();
    $classes++;
}

function check(bool $holds, mixed $seen): void
{
    if (!$holds) {
        fwrite(STDERR, print_r($seen, true));
        exit(1);
    }
}

function config(string $key, int $port): CreateConfigOperation
{
    return new CreateConfigOperation([
        'op' => 'create_config', 'config_definition_key' => DEFINITION, 'config_key' => $key, 'data' => ['port' => $port],
    ]);
}

$configuration = (new Configuration())->setHost(getenv('CONCORD_URL'))->setAccessToken(getenv('CONCORD_API_KEY'));
$http = new GuzzleHttp\Client();
$configs = new ConfigsApi($http, $configuration);

$batch = new PlainBatch(['operations' => [
    new CreateDefinitionOperation(['op' => 'create_definition', 'config_definition_key' => DEFINITION, 'indexes' => ['port']]),
    config('http', 80),
    config('https', 80),
    new PatchConfigOperation([
        'op' => 'patch_config', 'config_definition_key' => DEFINITION, 'config_key' => 'https', 'patch' => ['port' => 443],
    ]),
]]);
$done = (new BatchApi($http, $configuration))->runBatch($batch);
$results = $done->getData()->getResults();
check(count($results) === 4 && $results[2]->getCreated() && !$results[3]->getCreated(), $results);
check($done->getData()->getRevision() > 0, $done);

$page = $configs->listConfigs(config_definition_key: DEFINITION, filters: ['port[gte]' => '100'])->getData();
check($page->getMeta()->getTotal() === 1 && $page->getResults()[0]->getConfigKey() === 'https', $page);

try {
    check(false, $configs->readConfig(DEFINITION, 'missing'));
} catch (ApiException $failure) {
    check($failure->getCode() === 404 && $failure->getResponseObject() instanceof NotFoundError, $failure->getMessage());
    check($failure->getResponseObject()->getErrors()[0]->getCode() === 'config_not_found', $failure->getMessage());
}

$members = (new ClusterApi($http, $configuration))->getCluster()->getData()->getMembers();
check(count($members) === 1, $members);
echo "php: a batch, a list with a filter, a 404, the cluster; $classes files loaded\n";
