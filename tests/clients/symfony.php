<?php
// The recipe for Symfony Messenger with its own bus, transport and worker, without the rest of an
// application: it sends two messages and works until one is done and the other has failed for good.
// Usage: symfony.php HOST PORT

require_once 'Symfony/Component/Messenger/autoload.php';
require_once 'Symfony/Component/Messenger/Bridge/Beanstalkd/autoload.php';
require_once 'Symfony/Component/EventDispatcher/autoload.php';
require_once 'Symfony/Component/Yaml/autoload.php';

use App\Message\SendMail;
use App\MessageHandler\SendMailHandler;
use Symfony\Component\EventDispatcher\EventDispatcher;
use Symfony\Component\Messenger\Bridge\Beanstalkd\Transport\BeanstalkdTransportFactory;
use Symfony\Component\Messenger\Event\WorkerMessageFailedEvent;
use Symfony\Component\Messenger\EventListener;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\FailedMessageProcessingMiddleware;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Middleware\SendMessageMiddleware;
use Symfony\Component\Messenger\Retry\MultiplierRetryStrategy;
use Symfony\Component\Messenger\Transport\Sender\SendersLocator;
use Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;
use Symfony\Component\Messenger\Worker;
use Symfony\Component\Yaml\Yaml;

$recipe = dirname(__DIR__, 2) . '/contrib/recipes/symfony';
require "$recipe/SendMail.php";
require "$recipe/SendMailHandler.php";
$config = Yaml::parseFile("$recipe/messenger.yaml")['framework']['messenger'];
$dsn = "beanstalkd://{$argv[1]}:{$argv[2]}";

/** What Symfony finds by name. */
final class Services implements Psr\Container\ContainerInterface
{
    private array $all;

    public function __construct(array $all)
    {
        $this->all = $all;
    }

    public function get(string $id)
    {
        return $this->all[$id];
    }

    public function has(string $id): bool
    {
        return isset($this->all[$id]);
    }
}

$transports = [];
$retries = [];
foreach ($config['transports'] as $name => $transport) {
    assert($transport['dsn'] === '%env(MESSENGER_TRANSPORT_DSN)%');
    $factory = new BeanstalkdTransportFactory();
    $transports[$name] = $factory->createTransport($dsn, $transport['options'], new PhpSerializer());
    if (isset($transport['retry_strategy'])) {
        $it = $transport['retry_strategy'];
        // The waits of the recipe are for people.
        $delay = $it['delay'] / 5000;
        $retries[$name] = new MultiplierRetryStrategy($it['max_retries'], $delay, 1, $it['max_delay']);
    }
}
$services = new Services($transports);
$routing = array_map(fn ($name) => [$name], $config['routing']);
$bus = new MessageBus([
    new FailedMessageProcessingMiddleware(),
    new SendMessageMiddleware(new SendersLocator($routing, $services)),
    new HandleMessageMiddleware(new HandlersLocator([SendMail::class => [new SendMailHandler()]])),
]);
$events = new EventDispatcher();
$events->addSubscriber(
    new EventListener\SendFailedMessageForRetryListener($services, new Services($retries))
);
$failure = $services->get($config['failure_transport']);
$events->addSubscriber(
    new EventListener\SendFailedMessageToFailureTransportListener(
        new Services(array_map(fn () => $failure, $transports))
    )
);
$attempts = 0;
$events->addListener(WorkerMessageFailedEvent::class, function ($event) use (&$attempts, &$worker) {
    $attempts += 1;
    echo "raised {$event->getThrowable()->getMessage()}\n";
    if (! $event->willRetry()) {
        echo "failed after $attempts attempts\n";
        $worker->stop();
    }
}, -1000);

$bus->dispatch(new SendMail('ann@example.org'));
$bus->dispatch(new SendMail('nowhere'));
$worker = new Worker(['mail' => $transports['mail']], $bus, $events);
$worker->run(['sleep' => 0]);
foreach ($failure->get() as $envelope) {
    echo "set aside {$envelope->getMessage()->to}\n";
}
