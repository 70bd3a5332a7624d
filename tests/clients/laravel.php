<?php
// The recipe for Laravel with Laravel's own queue and worker, without the rest of an application: it
// puts two jobs and works until both are done or have failed. Usage: laravel.php HOST PORT

require_once 'PhpOption/autoload.php';
require_once 'Dotenv/autoload.php';
require_once 'Illuminate/Events/autoload.php';
require_once 'Illuminate/Bus/autoload.php';
require_once 'Illuminate/Queue/autoload.php';
require_once 'Pheanstalk/autoload.php';

use App\Jobs\SendMail;
use Illuminate\Container\Container;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Queue\Capsule\Manager;
use Illuminate\Queue\Events\JobFailed;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;

$recipe = dirname(__DIR__, 2) . '/contrib/recipes/laravel';
putenv("BEANSTALKD_QUEUE_HOST={$argv[1]}");
putenv("BEANSTALKD_QUEUE_PORT={$argv[2]}");
$config = require "$recipe/queue.php";
require "$recipe/SendMail.php";

final class Reports implements ExceptionHandler
{
    public function report(Throwable $e)
    {
        echo "raised {$e->getMessage()}\n";
    }

    public function shouldReport(Throwable $e)
    {
        return true;
    }

    public function render($request, Throwable $e)
    {
    }

    public function renderForConsole($output, Throwable $e)
    {
    }
}

$container = Container::getInstance();
$events = new Illuminate\Events\Dispatcher($container);
$container->instance(Illuminate\Contracts\Container\Container::class, $container);
$container->instance('events', $events);
$container->instance(Illuminate\Contracts\Events\Dispatcher::class, $events);
$container->instance(ExceptionHandler::class, new Reports());
$container->singleton(
    Illuminate\Contracts\Bus\Dispatcher::class,
    fn ($app) => new Illuminate\Bus\Dispatcher($app, fn () => $app['queue']->connection())
);

$manager = new Manager($container);
$name = $config['default'];
$manager->addConnection($config['connections'][$name], $name);
$container['config']['queue.default'] = $name;
$queue = $manager->getQueueManager();
$container->instance('queue', $queue);

$bus = $container->make(Illuminate\Contracts\Bus\Dispatcher::class);
$bus->dispatch(new SendMail('ann@example.org'));
$hopeless = new SendMail('nowhere');
// The waits of the recipe are for people.
$hopeless->backoff = 0;
$hopeless->tries = 3;
$bus->dispatch($hopeless);

$failed = false;
$events->listen(JobFailed::class, function (JobFailed $event) use (&$failed) {
    $failed = true;
    echo "failed: {$event->exception->getMessage()}\n";
});
$worker = new Worker($queue, $events, $container->make(ExceptionHandler::class), fn () => false);
$options = new WorkerOptions();
$options->sleep = 0;
while (! $failed) {
    $worker->runNextJob($name, $config['connections'][$name]['queue'], $options);
}
